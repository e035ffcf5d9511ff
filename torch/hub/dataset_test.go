package hub

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChoose(t *testing.T) {
	const configs = `---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path:
    - "main/test/**/part?.jsonl"
    - main/extra[0-3].csv
- config_name: other
  data_dir: ./other
  data_files: "*.json"
- config_name: bare
  data_dir: bare
- config_name: strange
  data_files: [a.txt]
---
# A data set
`
	names := []string{
		"README.md", "bare/data/train-00000-of-00001.parquet", "data/train-00000-of-00001.parquet", "main/extra1.csv", "main/extra9.csv",
		"main/test/a/b/part1.jsonl", "main/test/part2.jsonl", "main/test/part22.jsonl", "main/train-0.parquet", "main/train-1.parquet",
		"main/train-x/2.parquet", "other/a.json", "other/b.json", "other/c/d.json", "a.txt",
	}
	slices.Sort(names)
	one := "---\r\nconfigs:\r\n- config_name: only\r\n  data_files:\r\n  - {split: train, path: data/*}\r\n---\r\n"
	for _, tc := range []struct {
		what, card, config, split string
		names, want               []string
		err                       string
	}{
		{what: "patterns", card: configs, config: "main", split: "train", want: []string{"main/train-0.parquet", "main/train-1.parquet"}},
		{what: "order of patterns", card: configs, config: "main", split: "test", want: []string{"main/test/a/b/part1.jsonl", "main/test/part2.jsonl", "main/extra1.csv"}},
		{what: "a pattern alone is train", card: configs, config: "other", split: "train", want: []string{"other/a.json", "other/b.json"}},
		{what: "a folder without patterns", card: configs, config: "bare", split: "train", want: []string{"bare/data/train-00000-of-00001.parquet"}},
		{what: "the only configuration", card: one, split: "train", want: []string{"data/train-00000-of-00001.parquet"}},
		{what: "a marked one", card: strings.Replace(configs, "other\n", "other\n  default: true\n", 1), split: "train", want: []string{"other/a.json", "other/b.json"}},
		{what: "one called default", card: strings.Replace(configs, "other\n", "default\n", 1), split: "train", want: []string{"other/a.json", "other/b.json"}},
		{what: "several", card: configs, split: "train", err: "README.md: name one of the configurations main, other, bare, strange"},
		{what: "unknown", card: configs, config: "x", split: "train", err: "there is no configuration x; there are main, other"},
		{what: "no such split", card: configs, config: "main", split: "dev", err: "configuration main has no split dev; it has test, train"},
		{what: "another format", card: configs, config: "strange", split: "train", err: "a.txt is in none of the formats"},
		{what: "nothing matches", card: one, names: []string{"x.json"}, split: "train", err: "no file matches data/* of split train"},
		{what: "no YAML", card: "# A data set", split: "train", want: []string{"data/train-00000-of-00001.parquet"}},
		{what: "YAML without configurations", card: "---\nlicense: mit\n---\n", split: "train", want: []string{"data/train-00000-of-00001.parquet"}},
		{what: "broken YAML", card: "---\nconfigs: [\n---\n", split: "train", err: "README.md: its YAML: "},
		{what: "YAML after the configurations", card: strings.Replace(configs, "---\n#", "dataset_info: [{broken\n---\n#", 1), config: "other", split: "train", want: []string{"other/a.json", "other/b.json"}},
		{what: "an alias", card: "---\nconfigs:\n- data_files: *.csv\n---\n", split: "train", err: "anchor or alias"},
		{what: "deep YAML", card: "---\nconfigs: " + strings.Repeat("[", 1<<12) + "\n---\n", split: "train", err: "nested more than 8 deep"},
		{what: "long YAML", card: "---\nconfigs:\n" + strings.Repeat("- data_dir: a\n", 1<<17) + "---\n", split: "train", err: "more than 1048576"},
		{what: "odd data_files", card: "---\nconfigs:\n- config_name: a\n  data_files: [3]\n---\n", split: "train", err: `data_files of configuration "a": want patterns`},
		{what: "an odd pattern", card: "---\nconfigs:\n- data_files: '[z-a].csv'\n---\n", split: "train", err: "is no pattern"},
		{what: "parquet first", split: "train", names: []string{"train.csv", "train.jsonl", "train_2.parquet", "training.parquet"}, want: []string{"train_2.parquet"}},
		{what: "compressed lines", split: "test", names: []string{"sub/test.jsonl", "test-1.jsonl", "test.jsonl.gz", "test.jsonl.zst"}, want: []string{"test-1.jsonl", "test.jsonl.gz"}},
		{what: "a configuration as a folder", config: "sub", split: "test", names: []string{"sub/test.json", "test.json"}, want: []string{"sub/test.json"}},
		{what: "nothing", config: "sub", split: "dev", err: "there is no sub/data/dev-*.parquet and no sub/dev*.parquet, .jsonl, .json or .csv"},
	} {
		from := tc.names
		if from == nil {
			from = names
		}
		got, err := choose(from, []byte(tc.card), tc.config, tc.split)
		if tc.err != "" {
			wantError(t, tc.what, err, tc.err)
		} else if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", tc.what, err, diff)
		}
	}
}

// fetched is what Dataset finds, as contents.
func fetched(t *testing.T, c *tester, dataset, config, split string) ([]string, error) {
	t.Helper()
	paths, err := c.Dataset(t.Context(), dataset, config, split)
	var contents []string
	for _, path := range paths {
		contents = append(contents, read(t, path))
	}
	return contents, err
}

func TestDatasetFromTheHub(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{
		"README.md":                         "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n---\n",
		"data/train-00000-of-00002.parquet": "first", "data/train-00001-of-00002.parquet": "second", "data/test-00000-of-00001.parquet": "third",
	}, "datasets/org/set@main")
	got, err := fetched(t, c, "org/set", "", "train")
	if diff := cmp.Diff([]string{"first", "second"}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, line := range h.taken() {
		if path := strings.Fields(line)[1]; strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/api/datasets/org/set/") && !strings.HasPrefix(path, "/datasets/org/set/resolve/") || strings.Contains(line, "data/test") {
			t.Errorf("asked for %s", line)
		}
	}
	root := filepath.Join(os.Getenv("HF_HOME"), "hub", "datasets--org--set")
	if got := read(t, filepath.Join(root, "refs", "main")); got != commit1 {
		t.Errorf("refs/main is %q", got)
	}
	t.Setenv("HF_DATASETS_OFFLINE", "yes")
	h.taken()
	if got, err := fetched(t, c, "org/set", "default", "train"); err != nil || len(got) != 2 {
		t.Errorf("offline: %q, %v", got, err)
	}
	if err := os.Remove(filepath.Join(root, "snapshots", commit1, "data", "train-00001-of-00002.parquet")); err != nil {
		t.Fatal(err)
	}
	_, err = fetched(t, c, "org/set", "", "train")
	wantError(t, "a lost shard", err, "dataset org/set: data/train-00001-of-00002.parquet: not in the cache", "HF_DATASETS_OFFLINE forbids downloads")
	_, err = fetched(t, c, "org/none", "", "train")
	wantError(t, "nothing", err, `dataset "org/none" is neither a file nor a folder, and nothing of org/none is in the cache`)
	if log := h.taken(); len(log) > 0 {
		t.Errorf("requests were made: %q", log)
	}
}

func TestDatasetConversion(t *testing.T) {
	h, c := newFake(t), newTester()
	h.publish(commit1, map[string]string{"script.py": "", "all.tar": "x"}, "datasets/org/set@main")
	_, err := fetched(t, c, "org/set", "", "train")
	wantError(t, "no conversion", err, "there is no data/train-*.parquet", `its conversion to parquet: it has no branch, tag or commit "refs/convert/parquet"`)
	h.publish(commit2, map[string]string{
		".gitattributes": "", "default/train/0000.parquet": "first", "default/train/0001.parquet": "second", "plain/train/0000.parquet": "third",
	}, "datasets/org/set@refs/convert/parquet")
	for _, tc := range []struct {
		config, split string
		want          []string
		err           string
	}{
		{split: "train", want: []string{"first", "second"}},
		{config: "plain", split: "train", want: []string{"third"}},
		{split: "dev", err: "there is no default/dev/*.parquet"},
	} {
		got, err := fetched(t, c, "org/set", tc.config, tc.split)
		if tc.err != "" {
			wantError(t, tc.split, err, tc.err)
		} else if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
	_, err = chooseConverted([]string{"a/train/0.parquet", "b/train/0.parquet"}, "", "train")
	wantError(t, "several", err, "name one of the configurations a, b")
	_, err = fetched(t, c, "org/set@"+commit1, "", "train")
	wantError(t, "a revision has no conversion", err, "there is no data/train-*.parquet")
}

func TestDatasetOfOnesOwn(t *testing.T) {
	h, c := newFake(t), newTester()
	for path, content := range map[string]string{
		"rows.jsonl": "rows", "mine/data/test-00000-of-00001.parquet": "test", "mine/.cache/train.csv": "hidden", "mine/train.csv": "train",
		"half/data/train-00001-of-00003.parquet": "second",
	} {
		leave(t, path, content)
	}
	for _, tc := range []struct{ dataset, split, want, err string }{
		{dataset: "rows.jsonl", split: "train", want: "rows"},
		{dataset: "mine", split: "train", want: "train"},
		{dataset: "mine", split: "test", want: "test"},
		{dataset: "mine", split: "dev", err: "dataset folder mine: there is no data/dev-*.parquet"},
		{dataset: "half", split: "train", err: "it lacks data/train-00000-of-00003.parquet, data/train-00002-of-00003.parquet"},
		{dataset: "mine", err: "name a split"},
		{dataset: "./none/here", split: "train", err: "does not exist, and it names no repository"},
	} {
		got, err := fetched(t, c, tc.dataset, "", tc.split)
		if tc.err != "" {
			wantError(t, tc.dataset, err, tc.err)
		} else if err != nil || len(got) != 1 || got[0] != tc.want {
			t.Errorf("%s %s: %q, %v", tc.dataset, tc.split, got, err)
		}
	}
	if log := h.taken(); len(log) > 0 {
		t.Errorf("requests were made: %q", log)
	}
}

func TestLostShards(t *testing.T) {
	names := []string{"a-00000-of-00002.parquet", "b-00001-of-00002.csv", "c.json", "d-00000-of-99999.json"}
	lost := lostShards(names)
	if lost[0] != "a-00001-of-00002.parquet" || lost[1] != "b-00000-of-00002.csv" || len(lost) != 2+99998 {
		t.Errorf("got %d: %s", len(lost), some(lost))
	}
	if got := some(lost); got != "a-00001-of-00002.parquet, b-00000-of-00002.csv, d-00001-of-99999.json and 99997 more" {
		t.Errorf("got %q", got)
	}
}
