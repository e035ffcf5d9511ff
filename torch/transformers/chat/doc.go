// Package chat turns conversations into text with the chat template of a model folder, as the apply_chat_template
// of transformers 5 does.
package chat
