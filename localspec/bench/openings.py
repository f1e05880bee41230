"""The texts that `verify` continues: short, different from their first words on."""

OPENINGS = (
    'def fibonacci(n):\n    """Return the first n Fibonacci numbers."""\n',
    "import json\nimport sys\n\n\ndef main():\n    with open(sys.argv[1]) as file:\n",
    "class Queue:\n    def __init__(self):\n        self.held = []\n\n    def push(self, item):\n",
    "for name in sorted(names):\n    if name in seen:\n        continue\n",
    "The lighthouse keeper counted the ships every evening, and on the third day of the storm",
    "once = [1, 2, 3]\ntwice = [1, 2, 3, 1, 2, 3]\nthrice = [1, 2, 3, 1, 2, 3,",
    "To make bread you need flour, water, salt and time. To make soup you need",
    "try:\n    value = int(text)\nexcept ValueError:\n    value = None\nelse:\n",
)
