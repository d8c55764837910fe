"""KEDA client in a separate process: `client.py GENERATED ADDRESS POOL [CA [CERTIFICATE KEY]]` prints a JSON object.

It imports nothing of AstraFlow: its messages are generated from the proto beside it.
"""

import json
import sys
from pathlib import Path

import grpc


def main(generated: str, address: str, pool: str, *pem: str) -> None:
    sys.path.insert(0, generated)
    import externalscaler_pb2 as pb  # type: ignore[import-not-found]  # generated into the folder given
    import externalscaler_pb2_grpc as services  # type: ignore[import-not-found]

    answers: dict[str, object] = {}
    with _channel(address, pem) as channel:
        scaler = services.ExternalScalerStub(channel)
        scaled = pb.ScaledObjectRef(name="nodes", namespace="runs", scalerMetadata={"pool": pool} if pool else {})
        try:
            answers["spec"] = [
                [metric_spec.metricName, metric_spec.targetSize, metric_spec.targetSizeFloat]
                for metric_spec in scaler.GetMetricSpec(scaled, timeout=10).metricSpecs
            ]
            answers["is_active"] = scaler.IsActive(scaled, timeout=10).result
            request = pb.GetMetricsRequest(scaledObjectRef=scaled, metricName=answers["spec"][0][0])  # type: ignore[index]
            answers["metrics"] = [
                [metric_value.metricName, metric_value.metricValue, metric_value.metricValueFloat]
                for metric_value in scaler.GetMetrics(request, timeout=10).metricValues
            ]
            stream = scaler.StreamIsActive(scaled, timeout=10)
            answers["streamed"] = next(stream).result
            stream.cancel()
        except grpc.RpcError as problem:
            answers["code"], answers["details"] = problem.code().name, problem.details()
    print(json.dumps(answers))  # noqa: T201 (the parent process reads it)


def _channel(address: str, pem: tuple[str, ...]) -> grpc.Channel:
    """Opens a channel. pem: paths of the authority, and of the client's certificate and key, as far as given."""
    if not pem:
        return grpc.insecure_channel(address)
    ca, certificate, key = [Path(path).read_bytes() for path in pem] + [None] * (3 - len(pem))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate))


if __name__ == "__main__":
    main(*sys.argv[1:])
