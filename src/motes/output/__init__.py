"""Answers as people use them: tables, videos with tracks on them, a picture of the paths."""
