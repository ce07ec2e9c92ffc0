"""How data come: collectors step envs and policies and give whole fragments; an engine says when."""
