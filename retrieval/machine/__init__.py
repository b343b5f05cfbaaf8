"""Hardware and installed builds: devices, cores and memory, FAISS on a CPU or a GPU, extras."""
