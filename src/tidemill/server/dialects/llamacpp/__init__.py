"""The API of llama.cpp's server, as far as it is not OpenAI's."""
