"""Files of arrays: .npz, .safetensors, .pyrtz, ONNX; read with care, and written whole or not at all."""
