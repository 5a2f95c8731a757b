"""Videos: read, prepared for a model, and mapped back to recording pixels and seconds."""

from motes.video.clips import WholeClip, load_video_map, whole_clip
from motes.video.geometry import VideoMap
from motes.video.prepare import Plan, Preparation, find_preparation, plan
from motes.video.source import Frame, Video, open_video, read_frames

__all__ = [
    "Frame",
    "Plan",
    "Preparation",
    "Video",
    "VideoMap",
    "WholeClip",
    "find_preparation",
    "load_video_map",
    "open_video",
    "plan",
    "read_frames",
    "whole_clip",
]
