// Package prompts has the task prompts: prompts of a file of one's own, answered by a language model and paid by rewards
// of one's own, or for the right answer where the file has answers.
//
// # Rows
//
// A row has a prompt, or messages whose last one is not the assistant's. It may have an answer, a worked solution (column
// solution or completion, as text) and a kind. A prompt is shown to a model with a chat template as what the user says,
// and to one without as the text that it is; messages need a template. All rows of a file have the same columns.
//
// # Programs that answer
//
// With a program for the other side an episode has several turns. After each turn the program reads a line of JSON
//
//	{"id":7,"turn":1,"text":"Is it 12?","messages":[{"role":"user","content":"…"},…],"row":{"prompt":"…","answer":"17"}}
//
// where messages are all that was said, text the last of it, and row is the row of the file; and it writes what is said
// next, or that there is no more to say
//
//	{"id":7,"text":"More."}
//	{"id":8,"done":true}
//
// in any order, each at once. {"id":9,"error":"…"} ends an episode without a reward. How programs are started, and
// killed and started again where they fail, is described in package reward.
package prompts
