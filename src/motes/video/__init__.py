"""A person's own video: read, prepared for a model, and mapped back to its pixels and seconds."""

from motes.video.reading import open_video, read_frames
from motes.video.source import Frame, Video

__all__ = ["Frame", "Video", "open_video", "read_frames"]
