"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const map = document.getElementById("map"), card = document.getElementById("card");
const choice = document.getElementById("class"), group = document.getElementById("marks");
const marks = [...group.children];
function highlight(label) {
  group.classList.toggle("lit", label >= 0);
  marks.forEach((mark, i) => mark.classList.toggle("on", data.labels[i] === label));
}
function highlightChosen() {
  highlight(choice.value === "" ? -1 : Number(choice.value));
}
const selection = navigateMarks(map, group, i => {
  card.replaceChildren();
  if (i < 0) {
    card.textContent = "No point is selected.";
    highlightChosen();
    return;
  }
  highlight(data.labels[i]);
  if (data.images[i]) {
    const image = document.createElement("img");
    image.src = data.images[i];
    image.alt = "";
    card.append(image);
  }
  const text = document.createElement("div"), label = document.createElement("strong");
  label.textContent = data.classes[data.labels[i]];
  text.append(label);
  const file = document.createElement("small");
  file.textContent = data.synthetic[i] ? "synthetic point" : data.names[i];
  text.append(file);
  card.append(text);
});
choice.addEventListener("change", () => { selection.select(-1); highlightChosen(); });
