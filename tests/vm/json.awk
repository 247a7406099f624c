# Writes a JSON document as lines "PATH<tab>VALUE", such as ".rows.0.counts.cycles<tab>42". Strings lose their quotes, no escape is
# undone, and a key with a dot in it looks like two: enough for our own reports. Exits 1 at anything that is not JSON's alphabet.
function value(text) {
	if (kind[depth] == "{" && key == "") {
		key = text
		return
	}
	print place() "\t" text
	key = ""
}
function place() {
	return path[depth] "." (kind[depth] == "[" ? count[depth]++ : key)
}
{
	line = $0
	while (line != "") {
		if (match(line, /^[ \t\r,:]+/)) {
			# between values
		} else if (match(line, /^"([^"\\]|\\.)*"/)) {
			value(substr(line, 2, RLENGTH - 2))
		} else if (match(line, /^[[{]/)) {
			inner = depth ? place() : ""
			path[++depth] = inner
			kind[depth] = substr(line, 1, 1)
			count[depth] = 0
			key = ""
		} else if (match(line, /^[]}]/)) {
			depth--
		} else if (match(line, /^[-+.0-9a-zA-Z]+/)) {
			value(substr(line, 1, RLENGTH))
		} else {
			exit 1
		}
		line = substr(line, RLENGTH + 1)
	}
}
