// Package chat renders conversations with the chat template of a model folder, as apply_chat_template of transformers
// 5 does.
package chat
