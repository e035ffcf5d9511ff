package policy

import (
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// turnMark is an assistant's message whose place in a rendered conversation is looked for.
const turnMark = "rltrainTURN"

// turnEnd is the special token after the assistant's message in a chat template, -1 if there is none. Without it, a base
// model with a chat template would be trained on turns and never stop after one.
func turnEnd(templates *chat.Templates, words *tokenizer.Tokenizer, now time.Time) (int32, error) {
	if templates == nil {
		return -1, nil
	}
	rendered, err := templates.Render([]chat.Message{chat.NewMessage(envs.RoleUser, "-"), chat.NewMessage(envs.RoleAssistant, turnMark)}, chat.Options{Special: words.Special(), Now: now})
	if err != nil {
		return -1, nil // it may need what only the data has
	}
	_, rest, _ := strings.Cut(rendered.Text, turnMark)
	ids, err := words.EncodeRaw(strings.TrimSpace(rest), false)
	if err != nil || len(ids) == 0 {
		return -1, err
	}
	text, err := words.Decode(ids[:1], true)
	if err != nil || text != "" {
		return -1, err
	}
	return ids[0], nil
}
