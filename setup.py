"""The C kernels are optional: where no compiler is found, the install goes on without them."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "logstore.format._speed", ["logstore/format/_speed.c"], extra_compile_args=["-O3"], optional=True
        )
    ]
)
