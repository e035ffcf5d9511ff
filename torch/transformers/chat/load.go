package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// ErrNone is the error of a folder without a chat template.
var ErrNone = errors.New("has no chat template (chat_template.jinja, additional_chat_templates, or chat_template in tokenizer_config.json)")

// maxFile limits the size of the files read here, in bytes.
const maxFile = 64 << 20

// Load reads the chat templates of the model folder dir. Files ending in .jinja win over tokenizer_config.json, which
// wins over chat_template.json. Without a template it returns ErrNone; it never guesses one.
func Load(dir string) (*Templates, error) {
	for _, read := range []func(string) (*Templates, error){loadJinja, loadConfig, loadProcessor} {
		t, err := read(dir)
		if err != nil || t != nil {
			return t, err
		}
	}
	return nil, fmt.Errorf("chat: %s %w", dir, ErrNone)
}

// read returns a file's content; nil if the file does not exist.
func read(path string) ([]byte, error) {
	f, err := smallfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %s: %w", path, err)
	}
	return data, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// loadJinja reads chat_template.jinja, the default, and additional_chat_templates/NAME.jinja.
func loadJinja(dir string) (*Templates, error) {
	extra := filepath.Join(dir, "additional_chat_templates")
	entries, err := os.ReadDir(extra)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("chat: %w", err)
	}
	paths := map[string]string{"default": filepath.Join(dir, "chat_template.jinja")}
	for _, entry := range entries {
		if name, ok := strings.CutSuffix(entry.Name(), ".jinja"); ok && (name != "default" || !exists(paths[name])) {
			paths[name] = filepath.Join(extra, entry.Name())
		}
	}
	t := &Templates{map[string]*named{}}
	for name, path := range paths {
		data, err := read(path)
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue
		}
		if err := t.add(name, path, string(data)); err != nil {
			return nil, err
		}
	}
	if len(t.byName) == 0 {
		return nil, nil
	}
	return t, nil
}

func loadConfig(dir string) (*Templates, error) {
	return loadField(filepath.Join(dir, "tokenizer_config.json"))
}

func loadProcessor(dir string) (*Templates, error) {
	return loadField(filepath.Join(dir, "chat_template.json"))
}

// loadField reads the field chat_template of a JSON file: a template, or a list of {"name", "template"}.
func loadField(path string) (*Templates, error) {
	data, err := read(path)
	if data == nil || err != nil {
		return nil, err
	}
	var file struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("chat: %s: %w", path, err)
	}
	source := path + ": chat_template"
	var text string
	switch {
	case len(file.Template) == 0 || string(file.Template) == "null":
		return nil, nil
	case file.Template[0] == '"':
		if err := json.Unmarshal(file.Template, &text); err != nil {
			return nil, fmt.Errorf("chat: %s: %w", source, err)
		}
		return Parse(source, text)
	}
	var list []struct {
		Name     string  `json:"name"`
		Template *string `json:"template"`
	}
	if err := json.Unmarshal(file.Template, &list); err != nil {
		return nil, fmt.Errorf("chat: %s: %w", source, err)
	}
	t := &Templates{map[string]*named{}}
	for i, entry := range list {
		if entry.Name == "" || entry.Template == nil {
			return nil, fmt.Errorf("chat: %s: entry %d has no name or no template", source, i)
		}
		if err := t.add(entry.Name, fmt.Sprintf("%s %q", source, entry.Name), *entry.Template); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	return t, nil
}
