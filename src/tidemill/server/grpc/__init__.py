"""The Open Inference Protocol over gRPC; imported where `--grpc-port` says so."""
