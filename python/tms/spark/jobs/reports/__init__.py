"""Reports on topics by hour.

measuring   the numbers, by Spark
pictures    the numbers as a plot, and as a page
"""
