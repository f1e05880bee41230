"""Example messages of an empty chat; edits of a given text come first, where lookup gains."""

from __future__ import annotations

EXAMPLES = (
    """\
Rewrite this text in British English. Change only the spelling:

The color of the harbor at dawn is gray. Our neighbor, who labors at the theater in the center of \
town, travels there by tram and always carries a catalog of the plays. He is fond of humor and of \
the flavor of strong tea, and he apologizes when he honors nobody's favorite behavior.""",
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
"""Messages to a chat model. The first and the third repeat most of their text in the answer."""

TITLES = (
    "Rewrite a paragraph in British English.",
    "What is a bicycle?",
    "Rename a variable in a function.",
    "Give me three ideas for a rainy day.",
)
