"""A chat template takes no more memory than its limit, whatever operation asks for it."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits a process's memory"
)

_DOUBLED = (
    "{{% set n = namespace(x={0}) %}}{{% for i in range(40) %}}"
    "{{% set n.x = n.x {1} n.x %}}{{% endfor %}}{{{{ n.x | length }}}}"
)
GREEDY_TEMPLATES = (
    "{{ 'a' | center(4000000000) }}",
    "{{ '%4000000000d' % 1 }}",
    "{{ '{:>4000000000}'.format('a') }}",
    "{{ 'a'.ljust(4000000000) }}",
    "{{ 'a'.zfill(4000000000) }}",
    "{{ '\t'.expandtabs(2000000000) }}",
    "{{ 'a\nb' | indent(4000000000) }}",
    "{{ {'a': 1} | tojson(indent=4000000000) }}",
    "{{ (['a' * 1000000] * 4000) | join | length }}",
    "{{ ('a' * 40000).replace('a', 'b' * 100000) | length }}",
    "{{ ('b' * 100000).join('a' * 40000) | length }}",
    _DOUBLED.format("'aaaaaaaaaaaaaaaa'", "+"),
    _DOUBLED.format("'aaaaaaaaaaaaaaaa'", "~"),
    _DOUBLED.format("[1, 1, 1, 1]", "+"),
)
_CHILD = """
import json, resource, sys
from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render, memory_limit
from localspec.protocol.wire import ChatMessage

memory_limit.MAX_TEMPLATE_BYTES = 256 << 20
before = resource.getrlimit(resource.RLIMIT_AS)
for source in json.load(sys.stdin):
    try:
        jinja_render.render(source, [ChatMessage("user", "hi")], {})
    except UsageError:
        continue
    raise SystemExit(f"{source} is rendered")
assert resource.getrlimit(resource.RLIMIT_AS) == before
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_greedy_templates_are_refused_within_the_limit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(GREEDY_TEMPLATES),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    peak_megabytes = int(done.stdout)
    # Four compiled templates are kept, with the constants in them. The fifth has its own
    # constants when it is rendered, which may take the limit once more.
    n_kept = 4
    assert peak_megabytes < (n_kept + 1 + 1) * 256 + 64
