"""nn: fully connected networks trained over pyrt.

============== =====================================================================
``run``        a whole run in process: ``run(options) -> report``
``pipeline``   what it does once it is set up: train, evaluate, check, save
``options``    what a run is told
``command_line`` the options as train.py reads them and --help shows them
``data``       data sets: embedded digits, MNIST, IDX files, npz files
``held_out``   which rows of the training set validate
``network``    layer sizes, activation and head
``reference``  the equations in NumPy: the truth that everything is compared with
``parameters`` initial values, files
``plan``       who holds which samples, which gradients leave together
``operations`` one operation of a step: arrays, flops, NumPy function, kernel launch
``step``       the list of operations of a training step and of a forward pass
``launches``   launch shapes of the project's kernels
``update``     stochastic gradient descent on the flat buffers
``placement``  where the training set lies: on the device, or on the host
``source``     where a step finds its batch
``resident``   batches gathered on the device from the whole set
``streamed``   batches sent up from the host, several at a time
``feed``       rows on their way to the device
``ahead``      what the host does for them in other threads
``replay``     how steps get onto the device: launched, or replayed from graphs
``losses``     the losses of the steps on their way to the host
``training``   the loop
``evaluation`` loss, precision and recalls of a set
``check``      this run against the reference
``report``     what a run tells afterwards
``console``    what it tells while it goes on
``tables``     tables as wide as the terminal
============== =====================================================================
"""
