"""This computer: its devices, the installed llama.cpp, and measurements."""
