"""What is wrong with this installation, and the one line that mends it; nothing is changed.

No socket is opened.  `examination.py` looks everywhere; what is asked at every start stands here.
"""

from localspec.doctor.build import cpu_only_beside_gpu, dismiss
from localspec.doctor.finding import Finding

__all__ = ["Finding", "cpu_only_beside_gpu", "dismiss"]
