"""The APIs of model vendors, which chat applications speak: OpenAI's Chat Completions and Responses, Anthropic's Messages."""
