"""The protocol between syncer and learners, version 4: messages, codec, layouts and files, without any I/O.

`encode` and `decode` turn messages into bytes and back, `FrameReader` turns a byte stream into messages, `Session` holds
what the first HELLO fixed, and `build_layout` groups a model's tensors into fragments.
"""
