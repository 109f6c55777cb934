"""Archives: topics as Parquet files, and back.

layout     what is where in the directory of an archive, and its rows
limits     how much at a time
writing    topic → archive
restoring  archive → topic
"""
