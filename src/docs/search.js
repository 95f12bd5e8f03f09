/* The search looks through the index: names first, by where the word stands in them, then sentences. A # in the address such as
   #q=lstm searches at once. */
(function () {
  var input = document.getElementById("search"), found = document.getElementById("found"), at = -1;
  var all = [].map.call(document.querySelectorAll(".index li"), function (li) {
    var name = li.querySelector("a").textContent, text = li.querySelector("span").textContent;
    return { name: name, bare: name.toLowerCase().replace(/^flux_/, ""), text: text.toLowerCase(), said: text };
  });
  input.parentNode.hidden = false;
  function rank(entry, words) {
    var sum = 0;
    for (var i = 0; i < words.length; i++) {
      var w = words[i].replace(/^flux_/, ""), place = entry.bare.indexOf(w);
      if (entry.bare === w) sum += 0;
      else if (place === 0) sum += 1;
      else if (place > 0) sum += 2;
      else if (entry.text.indexOf(w) >= 0) sum += 4;
      else return 99;
    }
    return sum + entry.name.length / 100;
  }
  function show() {
    var words = input.value.toLowerCase().split(/\s+/).filter(Boolean), best = [];
    found.textContent = "";
    at = -1;
    if (!words.length) return;
    all.forEach(function (e) { var r = rank(e, words); if (r < 99) best.push([r, e]); });
    best.sort(function (a, b) { return a[0] - b[0]; });
    best.slice(0, 12).forEach(function (pair) {
      var li = document.createElement("li"), a = document.createElement("a"), span = document.createElement("span");
      a.href = "#" + pair[1].name;
      a.textContent = pair[1].name;
      span.textContent = pair[1].said;
      a.appendChild(span);
      li.appendChild(a);
      found.appendChild(li);
    });
    if (!best.length) {
      var none = document.createElement("li");
      none.className = "none";
      none.textContent = "nothing by that name";
      found.appendChild(none);
    }
  }
  function move(by) {
    var links = found.querySelectorAll("a");
    if (!links.length) return;
    if (at >= 0) links[at].className = "";
    at = (at + by + links.length) % links.length;
    links[at].className = "at";
    links[at].scrollIntoView({ block: "nearest" });
  }
  function away() { found.textContent = ""; input.value = ""; input.blur(); }
  input.addEventListener("input", show);
  input.addEventListener("keydown", function (e) {
    if (e.key === "ArrowDown") move(1), e.preventDefault();
    else if (e.key === "ArrowUp") move(-1), e.preventDefault();
    else if (e.key === "Escape") away();
    else if (e.key === "Enter") {
      var links = found.querySelectorAll("a");
      if (links.length) location.hash = links[at < 0 ? 0 : at].hash, away();
    }
  });
  found.addEventListener("click", away);
  document.addEventListener("keydown", function (e) {
    if (e.key === "/" && document.activeElement !== input && !e.ctrlKey && !e.metaKey) input.focus(), e.preventDefault();
  });
  document.addEventListener("click", function (e) { if (!input.parentNode.contains(e.target)) found.textContent = ""; });
  function from_address() {
    var asked = /^#q=(.*)/.exec(location.hash), there, inside;
    if (asked) input.value = decodeURIComponent(asked[1]), show();
    else if (location.hash && (there = document.getElementById(location.hash.slice(1))) && (inside = there.closest("details"))) {
      inside.open = true;
      there.scrollIntoView();
    }
  }
  window.addEventListener("hashchange", from_address);
  from_address();
})();
