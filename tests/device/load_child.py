"""Child process: the memory of a model on the devices here.

It prints what formulas give, what the memory probe counts, and what a load takes.

python -m tests.device.load_child FILE SETTINGS

SETTINGS are fields of ContextSettings, as JSON.
"""

import json
import sys
from pathlib import Path

from localspec.fit import machine_profile
from localspec.machine import memory_probe
from localspec.models.gguf import reader
from localspec.protocol.json_values import from_json
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import real_loads, shapes


def main() -> None:
    file = sys.argv[1]
    settings = from_json(ContextSettings, json.loads(sys.argv[2]))
    command = LoadCommand(file, None, settings)
    devices = machine_profile.detect().devices
    target = reader.read(Path(file))
    calculated = shapes.estimate_pair(command, target, None, devices)
    buffers = memory_probe.count_buffers(command, target)
    counted = shapes.replace_counted(calculated, command, (target, None), buffers)
    names = (*(device.name for device in devices), "CPU")
    taken = real_loads.load(command)
    figures = {
        "calculated": {name: calculated.of(name).total for name in names},
        "error": dict.fromkeys(names, calculated.error),
        "counted": {name: counted.of(name).total for name in names},
        "taken": {name: memory.total for name, memory in taken.items()},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
