package transformers

import (
	"rltrain/torch/transformers/chat"
)

// RenderChat turns a conversation into the token ids of its chat template's text; the template writes the special
// tokens. Where o.Special is nil it is the tokenizer's. assistant tells the tokens of which a byte lies in a
// {% generation %} block of the template, and is nil where the template places no such block: then it cannot tell
// what the assistant has said.
func RenderChat(t *Tokenizer, templates *chat.Templates, messages []chat.Message, o chat.Options) (ids []int32, assistant []bool, text string, err error) {
	if o.Special == nil {
		o.Special = t.named
	}
	out, err := templates.Render(messages, o)
	if err != nil {
		return nil, nil, "", err
	}
	ids, spans, err := t.EncodeSpans(out.Text)
	if err != nil {
		return nil, nil, "", err
	}
	if len(out.Generated) == 0 || out.Unplaced {
		return ids, nil, out.Text, nil
	}
	assistant = make([]bool, len(ids))
	for i, token := range spans {
		for _, block := range out.Generated {
			if token.Start < block.End && block.Start < max(token.End, token.Start+1) {
				assistant[i] = true
				break
			}
		}
	}
	return ids, assistant, out.Text, nil
}
