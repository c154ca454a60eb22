"""Files of arrays: .npz, .safetensors, ONNX; read with care, and written whole or not at all."""
