package train

import (
	"context"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
)

// suggestTask adds to an error about the data which task its rows are for, if that is another one.
func (t *trainer) suggestTask(ctx context.Context, err error) error {
	name := t.config.Text("dataset")
	if err == nil || name == "" || ctx.Err() != nil {
		return err
	}
	parts, unfound := t.setup().Find(ctx, name, t.config.Text("dataset_config"))
	if unfound != nil || len(parts) == 0 {
		return err
	}
	for r, unread := range dataset.Records(parts[0].Files...) {
		if task, what := taskOf(r); unread == nil && task != "" && !accepts(t.config.Task, task, what) {
			return fmt.Errorf("%w; the rows look like %s: use --task %s", err, what, task)
		}
		break
	}
	return err
}

// accepts tells whether a task may read what another one is for.
func accepts(own envs.Definition, task, what string) bool {
	prompts := task == "prompts" || what == withCompletions
	return own.Name == task || task == "intent" && own.Labels() || prompts && own.Plays() && !own.Labels()
}

const withCompletions = "prompts with completions"

// taskOf is the task that a row is for, and what the row is; "" if that is not plain.
func taskOf(r dataset.Record) (task, what string) {
	has := func(names ...string) bool {
		for _, name := range names {
			if _, ok := r.Fields.Get(name); !ok {
				return false
			}
		}
		return true
	}
	layout, err := chat.Detect(r)
	switch {
	case has("text", "label"):
		return "intent", "labelled texts"
	case err != nil:
		return "", ""
	case layout.Format == chat.Preference || layout.Format == chat.Unpaired || layout.Format == chat.Ranking:
		return "preference", "preferences"
	case layout.Format == chat.PromptOnly || has("prompt", "answer"):
		return "prompts", "prompts"
	case layout.Format == chat.PromptCompletion:
		return "chat", withCompletions
	case has("messages") || has("conversations"):
		return "chat", "conversations"
	}
	return "", ""
}
