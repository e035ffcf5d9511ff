package shared

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// launcherFile is the variable by which torchrun names a file of each process it starts. It shows what the first one that
// fails has written there as the cause.
const launcherFile = "TORCHELASTIC_ERROR_FILE"

// TellLauncher writes why the process has failed where its launcher looks for it, if there is one that does.
func TellLauncher(environ []string, why string) error {
	for _, pair := range environ {
		path, ours := strings.CutPrefix(pair, launcherFile+"=")
		if !ours || path == "" {
			continue
		}
		data, err := json.Marshal(map[string]any{"message": map[string]any{
			"message":   why,
			"extraInfo": map[string]string{"py_callstack": why, "timestamp": strconv.FormatInt(time.Now().Unix(), 10)},
		}})
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", launcherFile, err)
		}
	}
	return nil
}
