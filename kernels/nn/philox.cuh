// Random numbers by counting: Philox 4x32-10 (Salmon et al., SC 2011), as nn/model/philox.py has it.
#pragma once

struct Words {
    unsigned of[4];
};

__device__ inline Words philox(Words counter, unsigned key0, unsigned key1)
{
    unsigned(&c)[4] = counter.of;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long first = 0xD2511F53ull * c[0], second = 0xCD9E8D57ull * c[2];
        c[0] = (unsigned)(second >> 32) ^ c[1] ^ key0;
        c[1] = (unsigned)second;
        c[2] = (unsigned)(first >> 32) ^ c[3] ^ key1;
        c[3] = (unsigned)first;
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return counter;
}
