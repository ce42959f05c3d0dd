#!/usr/bin/env python3
"""Compiles each .cu here to a .ptx beside it, as the real kernels are: NVRTC, compute_80.

    pip install nvidia-cuda-nvrtc-cu12==12.4.127 nvidia-cuda-runtime-cu12==12.4.127
    python3 make.py [file.cu ...]

The .ptx files are checked in, so that the tests need no compiler.
"""
import ctypes
import pathlib
import sys

import nvidia.cuda_nvrtc
import nvidia.cuda_runtime

HERE = pathlib.Path(__file__).parent
INCLUDE = pathlib.Path(nvidia.cuda_runtime.__path__[0]) / "include"
LIBRARY = pathlib.Path(nvidia.cuda_nvrtc.__path__[0]) / "lib" / "libnvrtc.so.12"
nvrtc = ctypes.CDLL(str(LIBRARY))


def compile_ptx(source: pathlib.Path) -> str:
    program = ctypes.c_void_p()
    text = source.read_bytes()
    options = [b"--gpu-architecture=compute_80", b"--std=c++17", b"-I" + str(INCLUDE).encode()]
    argv = (ctypes.c_char_p * len(options))(*options)
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None) == 0
    status = nvrtc.nvrtcCompileProgram(program, len(options), argv)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status != 0:
        sys.exit(f"{source.name}: {log.value.decode()}")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value.decode()


for name in sys.argv[1:] or sorted(HERE.glob("*.cu")):
    source = pathlib.Path(name)
    source.with_suffix(".ptx").write_text(compile_ptx(source))
