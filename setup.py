"""The C kernels are optional: without a compiler the install goes on without them, and says what that costs.

pip shows a build's output only with `-v`, so `logstore --version` says the same afterwards.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_LOST = """
****************************************************************************************************
The C kernels of logstore were NOT built.
Everything works without them, on plain Python and NumPy, for more CPU: about twice as much for appends
and five times as much for reads. To have them, install a C compiler and Python's headers
(Debian: apt-get install gcc python3-dev), and install again with --force-reinstall --no-cache-dir.
Reason: {why:.200}
****************************************************************************************************
"""


class BuildKernels(build_ext):
    """An extension that cannot be built is reported in words and left out."""

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except Exception as error:  # whatever a compiler, a linker or a missing header raises
            print(_LOST.format(why=str(error)), file=sys.stderr)
            raise  # setuptools leaves out what is `optional`


setup(
    ext_modules=[
        Extension(
            "logstore.format._speed", ["logstore/format/_speed.c"], extra_compile_args=["-O3"], optional=True
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
