"""What others than llama.cpp say of this computer's memory; each may know nothing."""
