/** Images of a message, as data: URIs. */

const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MIB = 1024 * 1024;
/** Larger ones are refused by the APIs of the models. */
const MOST_BYTES = 5 * MIB;
const MOST_IMAGES = 20;
/** Of all images of a message: a request has 64 MiB at most, and base64 is a third longer. */
const MOST_TOGETHER = 40 * MIB;

/** Why an agent takes no images as data, in words; empty if it does. */
export const whyNoImages = (agent) =>
  agent && !agent.capabilities?.image?.data ? `${agent.title ?? agent.name} takes no images` : "";

/**
 * @param {Iterable<File>} files
 * @param {object[]} present images that the message has already
 * @returns {Promise<{images: {id: string, name: string, size: number, url: string}[], problems: string[]}>} those that can be sent, and why others
 *   cannot
 */
export async function readImages(files, present, agent) {
  const images = [];
  const problems = [];
  const refused = whyNoImages(agent);
  let bytes = present.reduce((sum, image) => sum + image.size, 0);
  for (const file of files) {
    const name = file.name || "image";
    if (refused) problems.push(`${refused}. ${name} was left out.`);
    else if (!TYPES.includes(file.type)) problems.push(`${name} is no PNG, JPEG, GIF or WebP image.`);
    else if (file.size > MOST_BYTES)
      problems.push(`${name} has ${(file.size / MIB).toFixed(1)} MB; an image may have ${MOST_BYTES / MIB} MB.`);
    else if (present.length + images.length >= MOST_IMAGES)
      problems.push(`A message may have ${MOST_IMAGES} images. ${name} was left out.`);
    else if (bytes + file.size > MOST_TOGETHER)
      problems.push(`The images of a message may have ${MOST_TOGETHER / MIB} MB together. ${name} was left out.`);
    else {
      images.push({ id: `${Date.now()}-${Math.random()}`, name, size: file.size, url: await dataUrl(file) });
      bytes += file.size;
    }
  }
  return { images, problems };
}

const dataUrl = (file) =>
  new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });

/** The content of a user message. */
export const contentOf = (text, images) =>
  images.length ? [...(text.trim() ? [{ type: "text", text }] : []), ...images.map(({ url }) => ({ type: "image", url }))] : text;
