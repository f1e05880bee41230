"""A computer for tests of commands: a hub, an empty cache and a catalogue."""

import functools
import tempfile
from pathlib import Path

from tests.support import head_models
from tests.support.fake_hub import FakeHub
from tests.support.run_command import Done, localspec
from tests.support.zoo import Zoo

BIG = "org/Tiny-GGUF"
SMALL = "org/Tiny-Draft-GGUF"
ODD = "else/Odd-GGUF"
DEEP = "org/Deep-GGUF"
INSIDE = "org/Inside-MTP-GGUF"
"""A target with heads beside it, and one with a layer of its own that guesses."""
HEAD = f"hf://{DEEP}/eagle3-Deep-Q8_0.gguf"
CATALOGUE = """\
schema: 1
models:
  - {id: tiny, title: Tiny, repo: org/Tiny-GGUF, file: Tiny-Q8_0.gguf, licence: mit}
  - {id: tiny-draft, title: Tiny draft, repo: org/Tiny-Draft-GGUF, file: Tiny-Draft-Q8_0.gguf}
  - {id: odd, title: Odd, repo: else/Odd-GGUF, file: Odd-F32.gguf}
  - {id: deep, title: Deep, repo: org/Deep-GGUF, file: Deep-Q8_0.gguf}
  - {id: head, title: Head, repo: else/Odd-GGUF, file: Head-Q8_0.gguf, kind: eagle3}
pairs:
  - {target: tiny, draft: tiny-draft}
  - {target: tiny, draft: odd}
  - {target: deep, draft: head}
"""
PAIR = "tiny+tiny-draft"
BAD_PAIR = "tiny+odd"

NO_SOCKETS = """\
import sys

def _watch(event, args):
    if event.startswith("socket."):
        raise RuntimeError(f"{event} {args}")

sys.addaudithook(_watch)
"""


@functools.cache
def _models() -> dict[tuple[str, str], bytes]:
    """By repository and file name."""
    models = {
        (ODD, "Head-Q8_0.gguf"): head_models.eagle3(),
        (DEEP, "Deep-Q8_0.gguf"): head_models.deep(),
        (DEEP, "eagle3-Deep-Q8_0.gguf"): head_models.eagle3(),
        (DEEP, "dflash-Deep-Q8_0.gguf"): head_models.eagle3(layers=(1, 2, 9)),
        (DEEP, "mtp-Deep-Q8_0.gguf"): head_models.block(),
        (INSIDE, "Inside-Q8_0.gguf"): head_models.mimo2(),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.gguf")
        return {
            place: head_models.quantised(model).write(path).read_bytes()
            for place, model in models.items()
        }


class Installation:
    """Files of the zoo on a hub, under names as the catalogue has them."""

    def __init__(self, hub: FakeHub, zoo: Zoo, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.cache = folder / "hub"
        folder.mkdir(exist_ok=True)
        hub.add(BIG, "Tiny-Q8_0.gguf", zoo["target"].read_bytes())
        hub.add(SMALL, "Tiny-Draft-Q8_0.gguf", zoo["cousin"].read_bytes())
        hub.add(ODD, "Odd-F32.gguf", zoo["renamed"].read_bytes())
        for (repo, file), data in _models().items():
            hub.add(repo, file, data)
        hub.cards[BIG] = {"license": "mit"}
        own = folder / "config" / "models.yaml"
        own.parent.mkdir(parents=True)
        own.write_text(CATALOGUE)
        self.env = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(self.cache),
            "LOCALSPEC_CONFIG": str(own.with_name("config.toml")),
            "HOME": str(folder),
        }

    def without_sockets(self) -> dict[str, str]:
        """For a process that dies of the first socket, and so do those that it starts."""
        site = self.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(NO_SOCKETS)
        root = Path(__file__).resolve().parents[2]
        return self.env | {"PYTHONPATH": f"{site}:{root}"}

    def do(self, *arguments: str | Path, **env: str) -> Done:
        return localspec(*arguments, env=self.env | env)

    def pulled(self, *refs: str) -> None:
        done = self.do("pull", "-y", *refs)
        assert done.code == 0, done.err

    def came(self) -> int:
        """Bytes of files on their way."""
        return sum(part.stat().st_size for part in self.cache.glob("*/blobs/*.part"))

    def finals(self) -> list[str]:
        """Names of files under which they could be loaded."""
        found = self.cache.glob("models--*/snapshots/*/**/*.gguf")
        return sorted(path.name for path in found)
