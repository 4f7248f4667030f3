raise ImportError("half an installation")
