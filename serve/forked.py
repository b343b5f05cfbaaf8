"""The modules of a server, loaded once in the process that its workers are forked from.

None of their objects is garbage. Frozen, they are not visited by the garbage collectors of the workers, which
would copy every page of memory that they are in.
"""

import gc

gc.disable()  # until they are loaded
import onnxruntime  # noqa: E402, F401  which every worker needs

import serve.app  # noqa: E402, F401

gc.freeze()
gc.enable()
