"""Archives: topics as Parquet files, and back.

layout     what is where in the directory of an archive, and its rows
writing    topic → archive
restoring  archive → topic
"""
