"""Columns out of values: of JSON by Arrow's parser (`json_columns`), of Avro and Protobuf by their libraries
(`decoded_columns`). A value that does not fit is kept as it is.

May import: `errors`. Called by the rooms of `lake`; a decoder travels to Spark's executors.
"""
