"""What is wrong with this installation, and what mends it: a line to type, often an action too.

Looking changes nothing and opens no socket; `mends.py` has what is done once a person agreed.
`examination.py` looks everywhere; what is asked at every start stands here.
"""

from localspec.doctor.build import cpu_only_beside_gpu, dismiss
from localspec.doctor.finding import Finding

__all__ = ["Finding", "cpu_only_beside_gpu", "dismiss"]
