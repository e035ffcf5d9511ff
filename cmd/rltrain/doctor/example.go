package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl/policy"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

// describeExample shows the first prompt of a task as the model sees it, and which tokens of prompt and completion SFT
// trains on. It prints errors of the chat template and does not return them.
func describeExample(s *shared.Sheet, p *policy.CausalLM, task string) error {
	example, err := firstExample(task, p.Templates != nil)
	if err != nil {
		return err
	}
	kind := "plain text: no chat template"
	if p.Templates != nil {
		kind = "messages"
	}
	s.Head("First prompt of %s (%s)", task, kind)
	ids, err := p.EncodePrompt(example)
	if err != nil {
		s.Row("problem", "%v", err)
		return nil
	}
	text, err := p.Tokenizer.Decode(ids, false)
	if err != nil {
		return err
	}
	s.Row("tokens", "%d", len(ids))
	for i, line := range strings.Split(text, "\n") {
		name := ""
		if i == 0 {
			name = "text"
		}
		s.Row(name, "%s", line)
	}
	s.Row("ids", "%s", strings.Trim(fmt.Sprint(ids), "[]"))

	s.Head("Trained tokens of prompt and completion")
	encoded, err := p.Encode(func(yield func(chat.Example, error) bool) { yield(example, nil) }, policy.EncodeOptions{CompletionOnly: true})
	if err != nil {
		s.Row("problem", "%v", err)
		return nil
	}
	if len(encoded.Sequences) == 0 {
		s.Row("problem", "no trained token fits into the context of %d tokens", p.MaxLength())
		return nil
	}
	x := policy.Samples(encoded.Sequences[:1])[0]
	if !slices.ContainsFunc(x.Actions, func(id int32) bool { return slices.Contains(p.EOS(), id) }) {
		s.Row("problem", "no stop token is trained on, so the model would not learn to stop")
	}
	return s.TrainedTokens(p, x)
}

// exampleTasks lists the language model tasks with an example that needs no data, SFT tasks first.
func exampleTasks() []string {
	var sft, play []string
	for _, d := range envs.Definitions() {
		switch {
		case d.Labels():
		case !d.Plays():
			sft = append(sft, d.Name)
		case d.Needs == "" && d.Demonstrations:
			play = append(play, d.Name)
		}
	}
	return append(sft, play...)
}

// firstExample returns the first prompt of a task with its completion, as messages or as plain text.
func firstExample(task string, messages bool) (chat.Example, error) {
	example := chat.Example{File: task, Line: 1, Format: chat.PromptCompletion}
	prompt, completion := envs.Observation{Text: "What is 2 + 2?"}, " 4"
	if messages {
		prompt, completion = envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: "What is 2 + 2?"}}}, "4"
	}
	d, err := envs.Find(task)
	if err != nil {
		return example, err
	}
	if d.Plays() {
		exercises, err := envs.New(task, envs.Setup{Text: !messages}, nil)
		if err != nil {
			return example, err
		}
		episode, err := exercises.Episode(envs.Train, 0)
		if err != nil {
			return example, err
		}
		if prompt, err = episode.Reset(context.Background()); err != nil {
			return example, err
		}
		completion = episode.(envs.Demonstrator).Solution()
	}
	if messages {
		example.Prompt.Messages = policy.Conversation(prompt.Messages)
		example.Completion.Messages = policy.Conversation([]envs.Message{{Role: envs.RoleAssistant, Content: completion}})
		return example, nil
	}
	example.Prompt.Text, example.Completion.Text = prompt.Text, completion
	return example, nil
}
