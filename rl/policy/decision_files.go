package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/transformers/decision"
)

// questionsFile has the questions of a head, as in a request.
const questionsFile = "decision_questions.json"

// HasQuestions tells whether a folder has a head for a fixed list of questions.
func HasQuestions(dir string) bool { return files.Exist(dir, questionsFile) }

// copyDecision copies the settings of a decision model to dir, from the first folder that has any.
func copyDecision(dir string, from ...string) error {
	for _, source := range from {
		found := false
		for _, name := range []string{decision.ConfigFile, decision.TemplateFile, questionsFile} {
			data, err := smallfile.Read(filepath.Join(source, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = outfile.Write(filepath.Join(dir, name), data, 0o644)
			}
			if err != nil {
				return fmt.Errorf("copying %s: %w", filepath.Join(source, name), err)
			}
			found = true
		}
		if found {
			break
		}
	}
	return nil
}
