"""Child process: the memory of a model on the devices here, by formulas, counted, and
taken.

python -m tests.device.load_child FILE SETTINGS      SETTINGS: fields of ContextSettings, as JSON
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
    file, settings = sys.argv[1], from_json(ContextSettings, json.loads(sys.argv[2]))
    command = LoadCommand(file, None, settings)
    devices = machine_profile.detect().devices
    target = reader.read(Path(file))
    calculated = shapes.estimate_pair(command, target, None, devices)
    buffers = memory_probe.count_buffers(command, target)
    counted = shapes.replace_counted(calculated, command, (target, None), buffers)
    names = (*(device.name for device in devices), "CPU")
    print(
        json.dumps(
            {
                "calculated": {name: calculated.of(name).total for name in names},
                "error": dict.fromkeys(names, calculated.error),
                "counted": {name: counted.of(name).total for name in names},
                "taken": {
                    name: part.total for name, part in real_loads.load(command).items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
