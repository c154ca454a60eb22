"""Kernels and their parameters as they are read from a source: the forms that are taken, and what is said of
the others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pyrt.kernels import KERNELS, all_constants, flatten, with_constants
from pyrt.kernels.c_types import CType, Parameter
from pyrt.kernels.signatures import Signature, launchable, read_kernels
from tests import few

PROJECT_FILES = sorted(KERNELS.rglob("*.cu"))
APART = {
    "pixels.cu": "float32 pixels, whatever REAL is",
    "augment.cu": "float32 pixels, whatever REAL is",
    "flip.cu": "real numbers in a structure",
    "batch.cu": "real numbers in a structure",
    "redistribute.cu": "real numbers in a structure",
}

STARTS_BEHIND = {"sliding.cu"}
"""Kernels that are faster if they are not launched beside the kernel before them; the files say why."""


def number(name: str, dtype: str, components: int = 1) -> Parameter:
    return Parameter(name, CType(np.dtype(dtype), components))


def array(name: str, dtype: str, components: int = 1) -> Parameter:
    return Parameter(name, CType(np.dtype(dtype), components), is_array=True)


def parameters(text: str, before: str = "") -> list[Parameter]:
    """The parameters of a kernel with this list of them."""
    kernel = read_kernels(f'{before}\nextern "C" __global__ void f({text}) {{}}')["f"]
    assert not kernel.obstacle
    return kernel.parameters


def test_several_kernels_between_other_things() -> None:
    source = """
    #define REAL float
    typedef REAL real;
    typedef unsigned char byte; typedef byte pixel;
    __device__ void helper(int n) {}
    // extern "C" __global__ void commented(int n) {}
    /* extern "C" __global__ void
       commented_too(int n) {} */
    const char *text = "extern \\"C\\" __global__ void quoted(int n) {}";
    extern "C" __global__ void first(int n, real rate, const real *__restrict__ in, pixel* p, double *d)
    { helper(n); }
    extern "C" __global__ void __launch_bounds__(256, 2)
    second(const int *const order /* rows, or null */,
           float x)  // scale
    {}
    extern "C" __global__ void nothing() {}
    """
    kernels = read_kernels(source)
    assert {name: kernel.parameters for name, kernel in kernels.items()} == {
        "first": [
            *(number("n", "i4"), number("rate", "f4"), array("in", "f4")),
            *(array("p", "u1"), array("d", "f8")),
        ],
        "second": [array("order", "i4"), number("x", "f4")],
        "nothing": [],
    }
    assert launchable(source) == list(kernels)


class TestForms:
    @pytest.mark.parametrize(
        "source",
        [
            'extern "C" __global__ void f(int n) {}',
            'extern "C" __global__ void\nf(int n)\n{}',
            'extern "C"\n__global__\nvoid\nf\n(\nint\nn\n)\n{\n}',
            'extern"C"__global__ void f(int n){}',
            'extern "C" { __global__ void f(int n) {} }',
            'extern "C" { struct S { int a; }; __device__ int g() { } __global__ void f(int n) {} }',
            '#ifdef __cplusplus\nextern "C" {\n#endif\n__global__ void f(int n) {}\n#if _C\n}\n#endif',
            'extern "C" __launch_bounds__(256) __global__ void f(int n) {}',
            'extern "C" __global__ __launch_bounds__((128 + 128), 2) void f(int n) {}',
            'extern "C" __global__ void __launch_bounds__(N(1), M) f(int n) {}',
            'extern "C" void __global__ f(int n) {}',
            '#define BOUNDS(n) __launch_bounds__(n)\nextern "C" __global__ void BOUNDS(32) f(int n) {}',
            '#define KERNEL extern "C" __global__ void\nKERNEL f(int n) {}',
            '#ifdef __X\n#define C extern "C"\n#else\n#define C\n#endif\nC __global__ void f(int n) {}',
            '#define C extern "C"\n#define KERNEL C __global__ void\nKERNEL f(int n) {}',
            'extern "C" __global__ void f(int n); __global__ void f(int n) {}',
            "static const char a = '\"', b = '{', c = '\\'';\nextern \"C\" __global__ void f(int n) {}",
            'const char *s = R"x( } " { )x";\nextern "C" __global__ void f(int n) {}',
            'namespace a { template <class T> void g(T *x) {} } extern "C" __global__ void f(int n) {}',
            '#if 0\nextern "C" __global__ void f(int *x) {}\n#endif\nextern "C" __global__ void f(int n) {}',
        ],
    )
    def test_that_are_taken(self, source: str) -> None:
        assert read_kernels(source)["f"] == Signature("f", [number("n", "i4")])
        assert launchable(source) == ["f"]

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("__global__ void f(int n) {}", r'name is mangled: write extern "C" in front of __global__'),
            ('extern "C" { } __global__ void f(int n) {}', "name is mangled"),
            (
                "template <class T> __global__ void f(T *x) {}",
                r"it is a template: write an extern .*constants:",
            ),
            ("template __global__ void f<int>(int *);", "it is a template"),
            ("template <> __global__ void f(int *x) {}", "it is a template"),
            ('namespace a { extern "C" __global__ void f(int n) {} }', "it is in a namespace: move it out"),
            ('namespace {\nextern "C" { __global__ void f(int n) {} } }', "it is in a namespace"),
            ('extern "C" { static __global__ void f(int n) {} }', "it is static"),
            (
                'extern "C" __global__ void f(Pair p) {}',
                "parameter p is a Pair, by value: let it be a pointer",
            ),
            ('extern "C" __global__ void f(struct Pair) {}', "parameter number 1 is a Pair, by value"),
            (
                'extern "C" __global__ void f(const int &n) {}',
                "`const int &n` is not a number, a vector or a",
            ),
            ('extern "C" __global__ void f(void (*g)(int)) {}', "is not a number"),
            ('extern "C" __global__ void f(T... x) {}', "is not a number"),
            ('#define ALL int n, int m\nextern "C" __global__ void f(ALL) {}', "the macro ALL stands among"),
            (
                "#if __CUDA_ARCH__ > 800\ntypedef float T;\n#else\ntypedef int T;\n#endif\n"
                'extern "C" __global__ void f(T *x) {}',
                "T has several meanings, by #undef or under an #if that only a compiler can decide: let a",
            ),
            (
                '#define T double\nextern "C" __global__ void f(T a, double *x) {}\n'
                "#undef T\n#define T float",
                "T has several meanings, by #undef",
            ),
            (
                '#define half float\n#undef half\nextern "C" __global__ void f(half *x) {}',
                "half has several meanings, by #undef",
            ),
            ('extern "C" __global__ void f(half *x) {}\n#define half float', "half has several meanings"),
            (
                '#define T double\n#undef T\ntypedef float T;\nextern "C" __global__ void f(T *x) {}',
                "T has several meanings, by #undef",
            ),
            (
                'extern "C" __global__ void f(int n = size<int, float>::value) {}',
                "default value among its parameters has a comma within <>",
            ),
            (
                '#ifdef PYRT_EMULATED\nextern "C" __global__ void f(int n) {}\n'
                '#else\nextern "C" __global__ void f(float n) {}\n#endif',
                "defined twice, with other parameters, under an #if",
            ),
        ],
    )
    def test_that_are_not(self, source: str, words: str) -> None:
        obstacle = read_kernels(source)["f"].obstacle
        assert re.search(words, obstacle)
        assert "\n" not in obstacle
        assert launchable(source) == []

    def test_what_is_not_defined_is_no_kernel(self) -> None:
        assert read_kernels('extern "C" __global__ void f(int n);') == {}

    def test_constants_decide(self) -> None:
        source = """// constants: WIDE=0|1
        #if WIDE
        typedef double real;
        #else
        typedef float real;
        #endif
        extern "C" __global__ void f(real x) {}
        """
        for wide, dtype in ((0, "f4"), (1, "f8")):
            assert read_kernels(with_constants(source, {"WIDE": wide}))["f"].parameters == [
                number("x", dtype)
            ]


class TestParameters:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("void", []),
            ("float x[]", [array("x", "f4")]),
            ("const float x[][4], int n = 3", [array("x", "f4"), number("n", "i4")]),
            ("unsigned *a, unsigned int b", [array("a", "u4"), number("b", "u4")]),
            ("const unsigned long long int *a", [array("a", "u8")]),
            ("float const *const __restrict__ a", [array("a", "f4")]),
            (
                "int, float *, unsigned",
                [number("number 1", "i4"), array("number 2", "f4"), number("number 3", "u4")],
            ),
            ("std::size_t n, ::uint32_t m", [number("n", "u8"), number("m", "u4")]),
            (
                "float4 *a, const float3 b[], double2 c",
                [array("a", "f4", 4), array("b", "f4", 3), number("c", "f8", 2)],
            ),
            ("half *a, __half b, half2 *c", [array("a", "f2"), number("b", "f2"), array("c", "f2", 2)]),
            ("void *a, struct Pair *b, std::complex<float> *c", [array(name, "u1") for name in "abc"]),
            ("[[maybe_unused]] int n, float *x [[maybe_unused]]", [number("n", "i4"), array("x", "f4")]),
            ("float **a, const void *const *b", [array("a", "u8"), array("b", "u8")]),
            ("const __grid_constant__ int n, volatile int *flag", [number("n", "i4"), array("flag", "i4")]),
        ],
    )
    def test_of_every_kind(self, text: str, expected: list[Parameter]) -> None:
        assert parameters(text) == expected

    @pytest.mark.parametrize(
        "before",
        [
            "typedef float T;",
            "typedef const float T;",
            "using T = float;",
            "#define T float",
            "#define U float\ntypedef U V; using T = V;",
            "#ifndef T\n#define T float\n#endif",
            "#define true_type 1\n#if true\n#define T float\n#else\n#define T double\n#endif",
            "struct S { typedef double T; }; typedef float T;",
            "typedef float T; template <class X> struct S { using T = X; int f() { typedef int T; } };",
            "struct alignas(16) S { typedef double T; }; typedef float T;",
            'extern "C" { typedef float T; }',
            "namespace mine { typedef float T; } using namespace mine;",
            "typedef float *pointer, T, **pointers;",
            "#ifdef OTHER\n#define T double\n#else\n#define T float\n#endif",
        ],
    )
    def test_under_names_of_the_source(self, before: str) -> None:
        assert parameters("T a, const T *b", before) == [number("a", "f4"), array("b", "f4")]

    def test_a_typedef_may_give_several_names(self) -> None:
        before = "typedef const float real, *floats, **more;"
        assert parameters("real a, floats b, more c, real *d", before) == [
            *(number("a", "f4"), array("b", "f4"), array("c", "u8"), array("d", "f4"))
        ]

    def test_a_type_within_a_structure_hides_none_of_cuda(self) -> None:
        assert parameters("half *x", "struct S { typedef float half; };") == [array("x", "f2")]

    def test_a_macro_may_say_what_a_type_of_cuda_is(self) -> None:
        assert parameters("uint n", "#define uint unsigned int") == [number("n", "u4")]

    @pytest.mark.parametrize(
        "value",
        [
            *("1 << 4", "sizeof(int) > 2 ? 1 : 2", "(1 < 2)", "1 < 2", "2 >= 1", "64 >> 2", "g(1, 2)"),
            *("{1}", "a->b", "size<int>::value", "(size<int, float>::value)"),
        ],
    )
    def test_with_default_values(self, value: str) -> None:
        text = f"int n = {value}, float *x = nullptr, const pair<int> *y = {value}, int m = {value}"
        assert parameters(text) == [number("n", "i4"), array("x", "f4"), array("y", "u1"), number("m", "i4")]

    def test_pointers_and_qualifiers_may_have_names_too(self) -> None:
        before = "typedef const float *floats;\n#define RESTRICT __restrict__\n#define NOTHING"
        assert parameters("floats a, int *RESTRICT b, NOTHING int n", before) == [
            *(array("a", "f4"), array("b", "i4"), number("n", "i4"))
        ]


def test_kernels_that_wait_by_themselves_overlap() -> None:
    source = """
    extern "C" __global__ void first(int n) { wait_for_previous_kernel(); }
    extern "C" __global__ void second(int n) { /* wait_for_previous_kernel(); */ }
    extern "C" __global__ void third(int n)
    {
        wait_for_previous_kernel();
    }
    extern "C" __global__ void fourth(int n, int soon) { start_beside_previous_kernel(soon); }
    extern "C" __global__ void late(int n, int *x) { x[0] = n; wait_for_previous_kernel(); }
    __device__ void other() { wait_for_previous_kernel(); }
    """
    overlapping = [name for name, kernel in read_kernels(source).items() if kernel.overlaps]
    assert overlapping == ["first", "third", "fourth"]


@pytest.mark.parametrize("file", PROJECT_FILES, ids=lambda file: str(file.relative_to(KERNELS)))
def test_every_kernel_of_the_project_under_all_constants(file: Path) -> None:
    """Each ``__global__`` is found, can be launched and waits by itself, or starts behind the one before it;
    its real numbers follow REAL."""
    combinations = all_constants(file.read_text())
    for constants in few(combinations[::4], of=combinations):
        source = with_constants(flatten(file, [KERNELS], constants), constants)
        kernels = read_kernels(source)
        names = re.findall(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)", file.read_text())
        assert list(kernels) == launchable(source) == names
        assert all(kernel.overlaps != (file.name in STARTS_BEHIND) for kernel in kernels.values())
        real = {"float": "f", "double": "d"}[constants["REAL"]]
        codes = {parameter.type.dtype.char for one in kernels.values() for parameter in one.parameters}
        assert {"f", "d"} & codes == {real} or file.name in APART
