// Package prompts is the task prompts: a language model answers prompts from a file. Rewards are the user's, or 1 for the
// correct answer if the file has answers.
//
// # Rows
//
// A row has a prompt, or messages that do not end with the assistant. It may have an answer, a demonstration (column
// solution or completion, as text) and a kind. A model with a chat template sees the prompt as a user message, a model
// without one as plain text; messages need a template. All rows of a file have the same columns.
//
// # Tools
//
// With --tools, the model calls tools while it answers; package tools runs them. A step with calls returns their results and
// continues the turn.
//
// # Multi-turn programs
//
// With --turns-cmd, a program plays the other side of a multi-turn episode. After each turn it reads a line of JSON:
//
//	{"id":7,"turn":1,"text":"Is it 12?","messages":[{"role":"user","content":"…"},…],"row":{"prompt":"…","answer":"17"}}
//
// messages is the conversation so far, text its last message, and row the row of the file. The program writes the next
// message, or that the conversation is over:
//
//	{"id":7,"text":"More."}
//	{"id":8,"done":true}
//
// It may reply in any order, each reply on one line, flushed at once. {"id":9,"error":"…"} ends an episode without a
// reward. Package reward describes how programs are started, and killed and restarted after a failure.
package prompts
