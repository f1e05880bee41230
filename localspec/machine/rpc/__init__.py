"""Workers: devices of other computers, reached through llama.cpp's RPC backend."""
