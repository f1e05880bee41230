"""Example messages of an empty chat.

The first one edits a given text: there prompt lookup gains most.
"""

from __future__ import annotations

EXAMPLES = (
    """\
Fix the spelling mistake in this text:

The color of the new theater is gray. Our neighbors organized a party in the cennter of the town, \
and everybody had a favorite flavor of ice cream. The program was printed on colored paper.""",
    "What is a bicycle?",
    """\
Rename the variable x to total in this function. Change nothing else:

```python
def average(values):
    x = 0.0
    count = 0
    for value in values:
        if value is None:
            continue
        x = x + value
        count = count + 1
    if count == 0:
        raise ValueError("no values")
    print("sum:", x, "count:", count)
    return x / count
```""",
    "Give me three ideas for a rainy day.",
)
"""Messages to a chat model.

The first and the third repeat most of their text in the answer.
"""

TITLES = (
    "Correct the spelling of a paragraph.",
    "What is a bicycle?",
    "Rename a variable in a function.",
    "Give me three ideas for a rainy day.",
)
PAUSED_HINT = (
    "Speculation is paused: drafts would cost more here than they save. "
    "Enter in a new chat shows a task where they gain."
)
