"""Property tests draw many more examples with `pytest --hypothesis-profile=thorough`.

Executables are not kept between processes, or counts of compiles would depend on earlier runs.
"""

import os

from hypothesis import settings

from trcomp import flags

pytest_plugins = ["trcomp.testing.plugin"]

os.environ[flags.CACHE.name] = "off"
# How long an example takes says nothing on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.register_profile("thorough", max_examples=10_000, deadline=None)
settings.load_profile("untimed")
