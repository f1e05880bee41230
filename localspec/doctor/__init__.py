"""What is wrong with this installation, and what mends it: a line to type, often an action too.

Looking changes nothing and opens no socket; `mends.py` has what is done once a person agreed.
`examination.py` looks everywhere; what is asked at every start stands here.
"""

from localspec.doctor.findings import Finding
from localspec.doctor.llama_build import dismiss, find_unused_gpu

__all__ = ["Finding", "dismiss", "find_unused_gpu"]
